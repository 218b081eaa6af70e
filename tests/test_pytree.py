"""Rules that stand in for each other are never taken for one another."""

import jax
import jax.numpy as jnp
import pytest

from sbdjax import masks, pytree


@pytree.dataclass
class Apples:
  weight: jax.Array
  kind: int = pytree.static(default=1)


@pytree.dataclass
class Pears:
  weight: jax.Array
  kind: int = pytree.static(default=1)


@pytree.dataclass
class Trimmed(Apples):
  pass


def test_the_class_and_the_static_fields_are_part_of_the_structure():
  """`flax.struct.dataclass` calls the first two equal."""
  one = jax.tree.structure(Apples(0))
  assert one != jax.tree.structure(Pears(0))
  assert one != jax.tree.structure(Trimmed(0))
  assert one != jax.tree.structure(Apples(0, kind=2))
  assert one == jax.tree.structure(Apples(jnp.ones(3)))


def test_no_two_mask_rules_compare_equal():
  block = [rule(2, max_block_size=16) for rule in (masks.BlockCausal, masks.SBDTrain)]
  block.append(masks.BlockDiffusionTrain(2, max_block_size=16))
  structures = [jax.tree.structure(rule) for rule in block]
  assert len({repr(s) for s in structures}) == 3
  assert all(a != b for i, a in enumerate(structures) for b in structures[:i])


def test_leaves_round_trip_under_their_names():
  ((path, leaf),) = jax.tree_util.tree_leaves_with_path(Apples(jnp.arange(3)))
  assert jax.tree_util.keystr(path) == ".weight" and leaf.shape == (3,)
  doubled = jax.jit(lambda a: jax.tree.map(lambda x: 2 * x, a))(Apples(jnp.arange(3), kind=5))
  assert isinstance(doubled, Apples) and doubled.kind == 5
  assert doubled.weight.tolist() == [0, 2, 4]


def test_an_instance_cannot_be_changed():
  with pytest.raises(AttributeError):
    Apples(1).weight = 2


@pytree.dataclass
class Berries(pytree.Struct):
  weight: int
  kind: int = pytree.static(default=1)


@pytest.mark.parametrize("cls", [Apples, Berries])
def test_a_copy_has_other_values_in_the_fields_that_are_named(cls):
  heavy = cls(1, kind=5).replace(weight=2)
  assert type(heavy) is cls and (heavy.weight, heavy.kind) == (2, 5)
  with pytest.raises(TypeError, match="colour"):
    heavy.replace(colour="red")
