"""Gradients of a model, and models side by side, for the tests of models."""

import torch


def gradients(net, logits):
    """Of a loss in which every logit has its own weight."""
    found = torch.autograd.grad((weights(logits) * logits).sum(), list(net.parameters()))
    return dict(zip(dict(net.named_parameters()), found, strict=True))


def weights(logits):
    return torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).reshape(logits.shape)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_replicas_are_models(many, make_one, x, g):
    """Each replica of `many` gives the logits and gradients of a model of its own; that model for each of them."""
    logits = many(x, g)
    weight, of_many = weights(logits), gradients(many, logits)
    ones = []
    for r in range(logits.shape[1]):
        one = make_one()
        one.load_state_dict({name: value[r] for name, value in many.state_dict().items()})
        expected = one(x, g)
        torch.testing.assert_close(logits[:, r], expected)
        (weight[:, r] * expected).sum().backward()
        assert_same(
            {name: value[r] for name, value in of_many.items()},
            {name: parameter.grad for name, parameter in one.named_parameters()},
        )
        ones.append(one)
    return ones
