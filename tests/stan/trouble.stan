// One program for several troubles, so that the tests compile little: each is switched on by the data.
data {
  int<lower=0, upper=1> rejects;
  int<lower=0, upper=1> flat;
  int<lower=0> N;
  vector[N] x;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  real alpha;
  real beta;
  matrix[2, 3] weights;
}
model {
  if (rejects) reject("alpha is refused: ", alpha);
  if (!flat) {
    alpha ~ normal(0, 5);
    beta ~ normal(0, 5);
  }
  to_vector(weights) ~ std_normal();
  y ~ bernoulli_logit(alpha + beta * x);
}
