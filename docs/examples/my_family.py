"""A model family: a Llama-like architecture under a name of its own, with biases on q, k and v."""

from sbdjax.interop.hf.families import FAMILIES, Family

# layout "llama": how its config.json and its tensors are named; fields: what is fixed in its network.
MY_FAMILY = Family("llama", "mymodel", {"qkv_bias": True})


def register() -> None:
  """From now on `load_pretrained` opens folders whose config.json names MyModelForCausalLM."""
  FAMILIES["MyModelForCausalLM"] = MY_FAMILY
