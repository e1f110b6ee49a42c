from torch.nn.modules.module import Module


class Linear(Module):
    def forward(self, value):
        return self.launch(value)


class ModuleList(Module):
    def __init__(self, members):
        super().__init__()
        for number, member in enumerate(members):
            setattr(self, str(number), member)

    def __iter__(self):
        return iter(self.children())
