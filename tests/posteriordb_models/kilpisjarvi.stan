// Summer temperatures at Kilpisjärvi by year: a trend with informative priors.
data {
  int<lower=1> N;
  vector[N] x;
  vector[N] y;
  real pmualpha;
  real<lower=0> psalpha;
  real pmubeta;
  real<lower=0> psbeta;
}
parameters {
  real alpha;
  real beta;
  real<lower=0> sigma;
}
model {
  target += normal_lpdf(alpha | pmualpha, psalpha);
  target += normal_lpdf(beta | pmubeta, psbeta);
  target += normal_lpdf(y | alpha + beta * x, sigma);
}
