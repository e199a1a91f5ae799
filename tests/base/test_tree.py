"""Trees behave like one vector; streams are numbers by name."""

from __future__ import annotations

import pytest
import torch
from toy import assert_same

from headway.base.tree import Tree, mean, seed_of, stream, stretch
from headway.engines.transport import SharedBuffer


def tree(a: list[float], b: float) -> Tree:
    return Tree({"a": torch.tensor(a), "b": torch.tensor(b)})


W = tree([1.0, 2.0], 3.0)
V = tree([4.0, -2.0], 0.5)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (W + V, tree([5.0, 0.0], 3.5)),
        (W - V, tree([-3.0, 4.0], 2.5)),
        (W * V, tree([4.0, -4.0], 1.5)),
        (W / V, tree([0.25, -1.0], 6.0)),
        (W * 2, tree([2.0, 4.0], 6.0)),
        (2 * W, tree([2.0, 4.0], 6.0)),
        (W / 2, tree([0.5, 1.0], 1.5)),
        (W + 1, tree([2.0, 3.0], 4.0)),
        (W - 1, tree([0.0, 1.0], 2.0)),
        (torch.tensor(2.0) * W, tree([2.0, 4.0], 6.0)),
        (sum([W, V, V]), tree([9.0, -2.0], 4.0)),
        (W.zeros(), tree([0.0, 0.0], 0.0)),
        (W.map(torch.neg), tree([-1.0, -2.0], -3.0)),
    ],
    ids=["add", "sub", "mul", "div", "scale", "rscale", "div2", "plus", "minus", "tensor", "sum", "zeros", "map"],
)
def test_arithmetic_is_that_of_one_vector(found: Tree, expected: Tree) -> None:
    assert_same(found, expected)


def test_the_arguments_stay_as_they_were() -> None:
    w, v = W.copy(), V.copy()
    _ = w + v, w - v, w * 2, w / v, w | v, mean([w, v], [0.5, 0.5])
    assert_same(w, W)
    assert_same(v, V)


def test_trees_of_other_names_do_not_mix_and_the_error_names_them() -> None:
    with pytest.raises(ValueError, match=r"trees differ in \['b', 'c'\] \(2 names\); both sides need the same names"):
        _ = W + Tree({"a": torch.zeros(2), "c": torch.zeros(())})


def test_names_of_the_right_side_may_come_in_another_order() -> None:
    assert_same(W + Tree({"b": V["b"], "a": V["a"]}), W + V)


def test_union_takes_the_right_value_and_is_a_tree() -> None:
    assert_same(
        W | {"b": torch.tensor(7.0), "c": torch.tensor(8.0)}, Tree({**tree([1.0, 2.0], 7.0), "c": torch.tensor(8.0)})
    )


def test_only_keeps_the_names_asked_for() -> None:
    assert list(W.only(lambda name: name == "b")) == ["b"]
    assert W.only(lambda name: False) == Tree()


def test_squared_norm_is_the_sum_of_squares() -> None:
    assert float(W.sq_norm()) == 14.0  # 1 + 4 + 9
    assert float(Tree().sq_norm()) == 0.0


def test_copy_has_memory_of_its_own_and_no_graph() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0]))
    copied = Tree({"p": p * 2}).copy()
    assert not copied["p"].requires_grad
    source = Tree({"p": torch.tensor([1.0])})
    twin = source.copy()
    twin["p"].add_(1)
    assert float(source["p"]) == 1.0


def test_gradients_flow_through_the_arithmetic() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    (0.5 * (Tree({"p": p}) - Tree({"p": torch.tensor([0.0, 5.0])})).sq_norm()).backward()
    assert p.grad.tolist() == [1.0, -3.0]  # w - w0


def test_mean_weighs_each_tree() -> None:
    # 0.25 (1, 2, 3) + 0.75 (4, -2, 0.5) = (3.25, -1, 1.125)
    assert_same(mean([W, V], [0.25, 0.75]), tree([3.25, -1.0], 1.125))


def test_mean_adds_in_the_order_given() -> None:
    # in float32 (1e8 + 1) - 1e8 = 0 and (1e8 - 1e8) + 1 = 1
    big, one = Tree({"a": torch.tensor(1e8)}), Tree({"a": torch.tensor(1.0)})
    assert float(mean([big, one, big], [1.0, 1.0, -1.0])["a"]) == 0.0
    assert float(mean([big, big, one], [1.0, -1.0, 1.0])["a"]) == 1.0


def test_mean_needs_a_weight_for_each_tree() -> None:
    with pytest.raises(ValueError):
        mean([W, V], [1.0])


def test_bytes_are_those_of_the_numbers() -> None:
    assert Tree({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)}).nbytes() == 3 * 4 + 2 * 8


def test_a_stream_is_a_function_of_its_name() -> None:
    def draw(*name: object) -> list[float]:
        return torch.rand(3, generator=stream(*name)).tolist()

    assert draw(0, "train", 1, 2) == draw(0, "train", 1, 2)
    others = [(1, "train", 1, 2), (0, "sampling", 1, 2), (0, "train", 2, 2), (0, "train", 1, 3), (0, "train", 12)]
    assert all(draw(0, "train", 1, 2) != draw(*name) for name in others)
    assert draw("1") != draw(1)


def test_a_seed_is_the_same_in_every_process() -> None:
    # blake2b of the name's text, 7 bytes: not Python's hash(), which differs from process to process
    assert seed_of(0, "partition") == int.from_bytes(bytes.fromhex("a588e397e96dbd"), "big")
    assert 0 <= seed_of("x") < 2**56


def test_streams_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=stream("a"))
    assert torch.equal(torch.get_rng_state(), before)


def packed(tree: Tree) -> Tree:
    """The same tree as a worker hands it over: named views into one piece of shared memory."""
    room = SharedBuffer(4096)
    found: Tree = room.unpack(room.pack({"w": tree}))["w"]
    return found


def test_trees_that_fill_a_stretch_of_memory_have_the_same_mean_to_the_bit() -> None:
    trees = [Tree(a=torch.randn(3, 5), b=torch.randn(()), c=torch.randn(7)) for _ in range(4)]
    p = [0.1, 0.2, 0.3, 0.4]
    flat = [packed(tree) for tree in trees]
    assert all(stretch(tree) is None for tree in trees)
    found = [stretch(tree) for tree in flat]
    assert [f and f.places for f in found] == [[("a", 0, (3, 5)), ("b", 16, ()), ("c", 32, (7,))]] * 4  # 64 bytes apart
    want, got = mean(trees, p), mean(flat, p)
    assert list(got) == list(want)
    for name, v in want.items():
        assert torch.equal(got[name], v), name
        assert got[name].untyped_storage().nbytes() == v.numel() * 4  # the workers' memory may be used again


def test_only_a_stretch_of_one_kind_in_order_is_one_vector() -> None:
    flat = packed(Tree(a=torch.zeros(2), b=torch.zeros(3), c=torch.zeros(4)))
    assert stretch(flat) is not None
    assert stretch(Tree(b=flat["b"], a=flat["a"])) is None
    assert stretch(flat | Tree(b=torch.zeros(3))) is None
    assert stretch(flat | Tree(b=flat["b"].flip(0))) is None
    assert stretch(packed(Tree(a=torch.zeros(2), b=torch.zeros(2, dtype=torch.int64), c=torch.zeros(2)))) is None
    assert stretch(Tree(a=flat["a"])) is None
    whole = packed(Tree(a=torch.tensor([1, 2]), b=torch.tensor([3])))
    assert stretch(whole) is None
    assert mean([whole, whole], [0.5, 0.5])["a"].tolist() == [1.0, 2.0]  # not whole numbers any more
    odd = mean([flat, flat | Tree(b=torch.ones(3))], [0.5, 0.5])  # one of them is no stretch: tensor by tensor
    assert odd["b"].tolist() == [0.5, 0.5, 0.5]
