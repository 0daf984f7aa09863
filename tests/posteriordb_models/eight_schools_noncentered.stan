// Effects of coaching in J schools, partially pooled; the effects are standardised so that tau may be small.
data {
  int<lower=1> J;
  vector[J] y;
  vector<lower=0>[J] sigma;
}
parameters {
  vector[J] theta_trans;
  real mu;
  real<lower=0> tau;
}
transformed parameters {
  vector[J] theta = mu + tau * theta_trans;
}
model {
  target += std_normal_lpdf(theta_trans);
  target += normal_lpdf(mu | 0, 5);
  target += cauchy_lpdf(tau | 0, 5);
  target += normal_lpdf(y | theta, sigma);
}
