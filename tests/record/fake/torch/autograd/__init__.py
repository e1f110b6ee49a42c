from torch.autograd import profiler  # noqa: F401


def _profiler_enabled():
    from torch.profiler import session

    return session.state == "started"
