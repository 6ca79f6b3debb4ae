"""Public models from packages, with random weights and inputs: nothing is downloaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VOCABULARY = 1000  # tokens are below it, whatever a model's own is


@dataclass(frozen=True)
class Model:
    """A model, and how it is called."""

    name: str
    package: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Mapping[str, Any]]  # of a batch: arguments by name, args for the others
    has_branches: bool = False  # whether parts of it need not wait for each other


MODELS: dict[str, Model] = {}


def _add(package: str, name: str, make: Any, inputs: Any, *, branches: bool = False) -> None:
    MODELS[name] = Model(name, package, make, inputs, branches)


def _image(size: int, batch: int) -> dict[str, Any]:
    return {"args": (torch.randn(batch, 3, size, size),)}


def _tokens(length: int, batch: int) -> Any:
    return torch.randint(0, _VOCABULARY, (batch, length))


# torchvision


def _vision(name: str, **more: Any) -> nn.Module:
    models = import_module("torchvision.models")
    found: nn.Module = models.get_model(name, weights=None, **more)
    return found


_WITHOUT_AIDS: dict[str, Any] = {"init_weights": False, "aux_logits": False}
_VISION: tuple[tuple[str, int, dict[str, Any], bool], ...] = (
    ("alexnet", 224, {}, False),
    ("vgg11", 224, {}, False),
    ("resnet18", 224, {}, False),
    ("resnet50", 224, {}, False),
    ("resnext50_32x4d", 224, {}, False),
    ("densenet121", 224, {}, False),
    ("googlenet", 224, _WITHOUT_AIDS, True),
    ("inception_v3", 299, _WITHOUT_AIDS, True),
    ("squeezenet1_1", 224, {}, True),
    ("shufflenet_v2_x1_0", 224, {}, True),
    ("mobilenet_v2", 224, {}, False),
    ("mobilenet_v3_small", 224, {}, False),
    ("mnasnet1_0", 224, {}, False),
    ("efficientnet_b0", 224, {}, False),
    ("regnet_y_400mf", 224, {}, False),
    ("convnext_tiny", 224, {}, False),
    ("swin_t", 224, {}, False),
    ("vit_b_16", 224, {}, False),
    ("maxvit_t", 224, {}, False),
    ("deeplabv3_resnet50", 224, {"weights_backbone": None}, True),
    ("lraspp_mobilenet_v3_large", 224, {"weights_backbone": None}, True),
)
for _name, _size, _more, _branches in _VISION:
    _add("torchvision", _name, partial(_vision, _name, **_more), partial(_image, _size),
         branches=_branches)  # fmt: skip


def _video(batch: int) -> dict[str, Any]:
    return {"args": (torch.randn(batch, 3, 8, 112, 112),)}


_add("torchvision", "r3d_18", partial(_vision, "r3d_18"), _video)

# timm


def _timm(name: str) -> nn.Module:
    found: nn.Module = import_module("timm").create_model(name, pretrained=False)
    return found


for _name, _size, _branches in (
    ("hrnet_w18_small", 224, True),
    ("nasnetalarge", 331, True),
    ("pnasnet5large", 331, True),
    ("inception_v4", 299, True),
    ("inception_resnet_v2", 299, True),
    ("res2net50_26w_4s", 224, True),
    ("resnest14d", 224, True),
    ("selecsls42b", 224, True),
    ("skresnet18", 224, True),
    ("dpn68", 224, True),
    ("dla34", 224, True),
    ("crossvit_9_240", 240, True),
    ("repvgg_a0", 224, True),
    ("mobileone_s0", 224, True),
    ("ghostnet_100", 224, False),
    ("mixer_b16_224", 224, False),
    ("levit_128", 224, False),
    ("poolformer_s12", 224, False),
    ("fastvit_t8", 256, False),
    ("cspresnet50", 256, True),
):
    _add("timm", _name, partial(_timm, _name), partial(_image, _size), branches=_branches)

# transformers


def _transformer(name: str, config: str, **more: Any) -> nn.Module:
    package = import_module("transformers")
    found: nn.Module = getattr(package, name)(getattr(package, config)(**more))
    return found


def _text(batch: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": _tokens(128, batch), **more}


def _both_texts(batch: int) -> dict[str, Any]:
    return _text(batch, decoder_input_ids=_tokens(32, batch), use_cache=False)


def _pixels(batch: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 224, 224)}


def _text_and_pixels(batch: int) -> dict[str, Any]:
    return {"input_ids": _tokens(32, batch), **_pixels(batch)}


def _speech(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 16000)}


def _spectrum(batch: int) -> dict[str, Any]:
    tokens = _tokens(16, batch)
    return {
        "input_features": torch.randn(batch, 80, 3000), "decoder_input_ids": tokens,
        "use_cache": False,
    }  # fmt: skip


_without_cache = partial(_text, use_cache=False)
_SMALL_LLAMA: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip
_TEXT_AND_MORE: tuple[tuple[str, str, str, Any, dict[str, Any], bool], ...] = (
    ("bert", "BertModel", "BertConfig", _text, {}, False),
    ("distilbert", "DistilBertModel", "DistilBertConfig", _text, {}, False),
    ("roberta", "RobertaModel", "RobertaConfig", _text, {}, False),
    ("electra", "ElectraModel", "ElectraConfig", _text, {}, False),
    ("albert", "AlbertModel", "AlbertConfig", _text,
     {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}, False),
    ("mobilebert", "MobileBertModel", "MobileBertConfig", _text, {}, False),
    ("deberta_v2", "DebertaV2Model", "DebertaV2Config", _text,
     {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
      "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256,
      "pos_att_type": ["p2c", "c2p"]}, True),
    ("gpt2", "GPT2Model", "GPT2Config", _without_cache, {}, False),
    ("gpt_neox", "GPTNeoXModel", "GPTNeoXConfig", _without_cache,
     {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
      "intermediate_size": 2048, "vocab_size": 50304}, True),
    ("llama", "LlamaModel", "LlamaConfig", _without_cache, _SMALL_LLAMA, True),
    ("qwen2", "Qwen2Model", "Qwen2Config", _without_cache, _SMALL_LLAMA, True),
    ("mixtral", "MixtralModel", "MixtralConfig", _without_cache,
     {**_SMALL_LLAMA, "num_hidden_layers": 2}, True),
    ("t5", "T5Model", "T5Config", _both_texts, {}, True),
    ("bart", "BartModel", "BartConfig", _both_texts, {}, True),
    ("whisper", "WhisperModel", "WhisperConfig", _spectrum, {}, True),
    ("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", _speech, {}, False),
    ("vit", "ViTModel", "ViTConfig", _pixels, {}, False),
    ("deit", "DeiTModel", "DeiTConfig", _pixels, {}, False),
    ("swin", "SwinModel", "SwinConfig", _pixels, {}, False),
    ("segformer", "SegformerModel", "SegformerConfig", _pixels, {}, False),
    ("clip", "CLIPModel", "CLIPConfig", _text_and_pixels, {}, True),
)  # fmt: skip
for _name, _class, _config, _inputs, _more, _branches in _TEXT_AND_MORE:
    _add("transformers", _name, partial(_transformer, _class, _config, **_more), _inputs,
         branches=_branches)  # fmt: skip

# torch_geometric


def _graph_net(name: str, **more: Any) -> nn.Module:
    found: nn.Module = getattr(import_module("torch_geometric.nn"), name)(
        128, 128, num_layers=3, **more
    )
    return found


_NODES, _EDGES = 2000, 10000
_KINDS = "author", "paper", "venue", "field"


def _graph(batch: int) -> dict[str, Any]:
    nodes = batch * _NODES
    edges = torch.randint(0, nodes, (2, batch * _EDGES))
    return {"args": (torch.randn(nodes, 128), edges)}


class Relations(nn.Module):
    """Two layers of a network on a graph with four kinds of nodes, each pair a relation."""

    def __init__(self) -> None:
        super().__init__()
        package = import_module("torch_geometric.nn")
        pairs = [(a, "to", b) for a in _KINDS for b in _KINDS if a != b]
        self.layers = nn.ModuleList(
            [
                package.HeteroConv({pair: package.SAGEConv(128, 128) for pair in pairs})
                for _ in range(2)
            ]
        )

    def forward(self, x: dict[str, Any], edges: dict[Any, Any]) -> dict[str, Any]:
        """Let each kind of nodes hear from all others, twice."""
        for layer in self.layers:
            x = {kind: value.relu() for kind, value in layer(x, edges).items()}
        return x


def _relations(batch: int) -> dict[str, Any]:
    n = 500 * batch
    x = {kind: torch.randn(n, 128) for kind in _KINDS}
    edges = {
        (a, "to", b): torch.randint(0, n, (2, 4 * n)) for a in _KINDS for b in _KINDS if a != b
    }
    return {"args": (x, edges)}


for _name in ("GCN", "GraphSAGE", "GIN", "GAT"):
    _add("torch_geometric", _name.lower(), partial(_graph_net, _name), _graph)
_add("torch_geometric", "hetero_gnn", Relations, _relations, branches=True)

# torchaudio


def _audio(name: str, *sizes: Any, **more: Any) -> nn.Module:
    found: nn.Module = getattr(import_module("torchaudio.models"), name)(*sizes, **more)
    return found


def _wave(batch: int) -> dict[str, Any]:
    return {"args": (torch.randn(batch, 1, 16000),)}


_add("torchaudio", "conv_tasnet", partial(_audio, "ConvTasNet"), _wave)
_add("torchaudio", "wav2letter", partial(_audio, "Wav2Letter"), _wave)
_add("torchaudio", "deepspeech", partial(_audio, "DeepSpeech", 64),
     lambda batch: {"args": (torch.randn(batch, 1, 50, 64),)})  # fmt: skip

# torch.nn


class Recommender(nn.Module):
    """Dense features through one stack, twenty-six embeddings beside it (as in DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(10_000, 64, mode="sum") for _ in range(26)])
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64)
        )
        self.top = nn.Sequential(
            nn.Linear(27 * 64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense: Any, sparse: Any) -> Any:
        """Return one score a row."""
        found = [table(sparse[i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *found], 1)).sigmoid()


def _clicks(batch: int) -> dict[str, Any]:
    rows = 32 * batch
    return {"args": (torch.randn(rows, 13), torch.randint(0, 10_000, (26, rows, 4)))}


def _sequence(batch: int) -> dict[str, Any]:
    return {"args": (torch.randn(24, batch, 256),)}


def _two_sequences(batch: int) -> dict[str, Any]:
    return {"args": (torch.randn(batch, 64, 512), torch.randn(batch, 32, 512))}


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


_add("torch.nn", "dlrm", Recommender, _clicks, branches=True)
_add("torch.nn", "transformer", partial(nn.Transformer, batch_first=True), _two_sequences,
     branches=True)  # fmt: skip
_add("torch.nn", "transformer_encoder", _encoder,
     lambda batch: {"args": (torch.randn(batch, 64, 512),)})  # fmt: skip
_add("torch.nn", "lstm", partial(nn.LSTM, 256, 256, 2, bidirectional=True), _sequence,
     branches=True)  # fmt: skip
_add("torch.nn", "gru", partial(nn.GRU, 256, 256, 2), _sequence)

TWENTY = (
    "googlenet", "inception_v3", "hrnet_w18_small", "nasnetalarge", "pnasnet5large",
    "inception_v4", "res2net50_26w_4s", "squeezenet1_1", "crossvit_9_240", "densenet121",
    "dlrm", "hetero_gnn", "transformer", "lstm", "bert", "t5", "gpt2", "llama", "clip", "swin_t",
)  # fmt: skip
TRAINED = (
    "resnet18", "googlenet", "squeezenet1_1", "shufflenet_v2_x1_0", "vit_b_16", "dlrm",
    "transformer", "lstm", "bert", "gpt2",
)  # fmt: skip

if __name__ == "__main__":
    print(*(f"{each.package} {each.name}" for each in MODELS.values()), sep="\n", file=sys.stdout)
