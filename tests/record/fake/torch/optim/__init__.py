from torch.optim.optimizer import Adam, Optimizer  # noqa: F401
