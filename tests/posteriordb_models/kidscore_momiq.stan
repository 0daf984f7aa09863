// Test scores of children by the IQ of their mothers.
data {
  int<lower=1> N;
  vector[N] kid_score;
  vector[N] mom_iq;
}
parameters {
  vector[2] beta;
  real<lower=0> sigma;
}
model {
  target += cauchy_lpdf(sigma | 0, 2.5);
  target += normal_lpdf(kid_score | beta[1] + beta[2] * mom_iq, sigma);
}
