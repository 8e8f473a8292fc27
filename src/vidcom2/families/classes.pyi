"""Written by `.ci/stubs.py` from the rows of `table.py`."""

from transformers import (
    CohereCompassConfig,
    CohereCompassForConditionalGeneration,
    CohereCompassModel,
    Cosmos3OmniConfig,
    Cosmos3OmniForConditionalGeneration,
    Exaone4_5_Config,
    Exaone4_5_ForConditionalGeneration,
    Exaone4_5_Model,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vModel,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Glm4vMoeModel,
    Glm5NextConfig,
    Glm5NextForConditionalGeneration,
    Glm5NextModel,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    Glm46VModel,
    GlmgaConfig,
    HyperCLOVAXVisionV2Config,
    HyperCLOVAXVisionV2ForConditionalGeneration,
    HyperCLOVAXVisionV2Model,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Kimi_K25Model,
    Lfm3VlConfig,
    Lfm3VlForConditionalGeneration,
    Lfm3VlModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5Model,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeModel,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLModel,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLMoeModel,
    Qwen4ExpConfig,
    Qwen4ExpForConditionalGeneration,
    Qwen4ExpModel,
)
from transformers.models.cosmos3_omni.modeling_cosmos3_omni import Cosmos3OmniModel

from ..configuration.family_config import FamilyConfig
from ..modeling.families.glm_videos import GlmVideoModelMixin, SharedIdsMixin
from ..modeling.families.grid_rows import GridRowsMixin, HeadOfGridRowsMixin
from ..modeling.families.linear_attention import LinearAttentionMixin
from ..modeling.families.plain_positions import PositionsByOrderMixin
from ..modeling.families.qwen_videos import GridVideosMixin, QwenVideoModelMixin
from ..modeling.prompt.compressed_generation import VidCom2GenerationMixin

class VidCom2Qwen3_5Config(FamilyConfig, Qwen3_5Config): ...

class VidCom2Qwen3_5Model(LinearAttentionMixin, QwenVideoModelMixin, Qwen3_5Model):
    config: VidCom2Qwen3_5Config

class VidCom2Qwen3_5ForConditionalGeneration(VidCom2GenerationMixin, Qwen3_5ForConditionalGeneration):
    config: VidCom2Qwen3_5Config

class VidCom2Qwen3VLConfig(FamilyConfig, Qwen3VLConfig): ...

class VidCom2Qwen3VLModel(QwenVideoModelMixin, Qwen3VLModel):
    config: VidCom2Qwen3VLConfig

class VidCom2Qwen3VLForConditionalGeneration(VidCom2GenerationMixin, Qwen3VLForConditionalGeneration):
    config: VidCom2Qwen3VLConfig

class VidCom2Qwen2_5_VLConfig(FamilyConfig, Qwen2_5_VLConfig): ...

class VidCom2Qwen2_5_VLModel(QwenVideoModelMixin, Qwen2_5_VLModel):
    config: VidCom2Qwen2_5_VLConfig

class VidCom2Qwen2_5_VLForConditionalGeneration(VidCom2GenerationMixin, Qwen2_5_VLForConditionalGeneration):
    config: VidCom2Qwen2_5_VLConfig

class VidCom2Kimi_K25Config(FamilyConfig, Kimi_K25Config): ...

class VidCom2Kimi_K25Model(GridRowsMixin, Kimi_K25Model):
    config: VidCom2Kimi_K25Config

class VidCom2Kimi_K25ForConditionalGeneration(
    HeadOfGridRowsMixin, VidCom2GenerationMixin, Kimi_K25ForConditionalGeneration
):
    config: VidCom2Kimi_K25Config

class VidCom2Exaone4_5_Config(FamilyConfig, Exaone4_5_Config): ...

class VidCom2Exaone4_5_Model(GridVideosMixin, Exaone4_5_Model):
    config: VidCom2Exaone4_5_Config

class VidCom2Exaone4_5_ForConditionalGeneration(
    PositionsByOrderMixin, VidCom2GenerationMixin, Exaone4_5_ForConditionalGeneration
):
    config: VidCom2Exaone4_5_Config

class VidCom2Qwen3VLMoeConfig(FamilyConfig, Qwen3VLMoeConfig): ...

class VidCom2Qwen3VLMoeModel(QwenVideoModelMixin, Qwen3VLMoeModel):
    config: VidCom2Qwen3VLMoeConfig

class VidCom2Qwen3VLMoeForConditionalGeneration(VidCom2GenerationMixin, Qwen3VLMoeForConditionalGeneration):
    config: VidCom2Qwen3VLMoeConfig

class VidCom2Qwen3_5MoeConfig(FamilyConfig, Qwen3_5MoeConfig): ...

class VidCom2Qwen3_5MoeModel(LinearAttentionMixin, QwenVideoModelMixin, Qwen3_5MoeModel):
    config: VidCom2Qwen3_5MoeConfig

class VidCom2Qwen3_5MoeForConditionalGeneration(VidCom2GenerationMixin, Qwen3_5MoeForConditionalGeneration):
    config: VidCom2Qwen3_5MoeConfig

class VidCom2Qwen4ExpConfig(FamilyConfig, Qwen4ExpConfig): ...

class VidCom2Qwen4ExpModel(LinearAttentionMixin, QwenVideoModelMixin, Qwen4ExpModel):
    config: VidCom2Qwen4ExpConfig

class VidCom2Qwen4ExpForConditionalGeneration(VidCom2GenerationMixin, Qwen4ExpForConditionalGeneration):
    config: VidCom2Qwen4ExpConfig

class VidCom2Lfm3VlConfig(FamilyConfig, Lfm3VlConfig): ...

class VidCom2Lfm3VlModel(LinearAttentionMixin, GridVideosMixin, Lfm3VlModel):
    config: VidCom2Lfm3VlConfig

class VidCom2Lfm3VlForConditionalGeneration(VidCom2GenerationMixin, Lfm3VlForConditionalGeneration):
    config: VidCom2Lfm3VlConfig

class VidCom2CohereCompassConfig(FamilyConfig, CohereCompassConfig): ...

class VidCom2CohereCompassModel(QwenVideoModelMixin, CohereCompassModel):
    config: VidCom2CohereCompassConfig

class VidCom2CohereCompassForConditionalGeneration(VidCom2GenerationMixin, CohereCompassForConditionalGeneration):
    config: VidCom2CohereCompassConfig

class VidCom2HyperCLOVAXVisionV2Config(FamilyConfig, HyperCLOVAXVisionV2Config): ...

class VidCom2HyperCLOVAXVisionV2Model(GridVideosMixin, HyperCLOVAXVisionV2Model):
    config: VidCom2HyperCLOVAXVisionV2Config

class VidCom2HyperCLOVAXVisionV2ForConditionalGeneration(
    PositionsByOrderMixin, VidCom2GenerationMixin, HyperCLOVAXVisionV2ForConditionalGeneration
):
    config: VidCom2HyperCLOVAXVisionV2Config

class VidCom2Glm4vConfig(FamilyConfig, Glm4vConfig): ...

class VidCom2Glm4vModel(GlmVideoModelMixin, Glm4vModel):
    config: VidCom2Glm4vConfig

class VidCom2Glm4vForConditionalGeneration(VidCom2GenerationMixin, Glm4vForConditionalGeneration):
    config: VidCom2Glm4vConfig

class VidCom2Glm4vMoeConfig(FamilyConfig, Glm4vMoeConfig): ...

class VidCom2Glm4vMoeModel(GlmVideoModelMixin, Glm4vMoeModel):
    config: VidCom2Glm4vMoeConfig

class VidCom2Glm4vMoeForConditionalGeneration(VidCom2GenerationMixin, Glm4vMoeForConditionalGeneration):
    config: VidCom2Glm4vMoeConfig

class VidCom2Glm46VConfig(FamilyConfig, Glm46VConfig): ...

class VidCom2Glm46VModel(GlmVideoModelMixin, Glm46VModel):
    config: VidCom2Glm46VConfig

class VidCom2Glm46VForConditionalGeneration(VidCom2GenerationMixin, Glm46VForConditionalGeneration):
    config: VidCom2Glm46VConfig

class VidCom2GlmgaConfig(FamilyConfig, GlmgaConfig): ...

class VidCom2GlmgaModel(GlmVideoModelMixin, Glm46VModel):
    config: VidCom2GlmgaConfig

class VidCom2GlmgaForConditionalGeneration(VidCom2GenerationMixin, Glm46VForConditionalGeneration):
    config: VidCom2GlmgaConfig

class VidCom2Glm5NextConfig(FamilyConfig, Glm5NextConfig): ...

class VidCom2Glm5NextModel(LinearAttentionMixin, SharedIdsMixin, GridVideosMixin, Glm5NextModel):
    config: VidCom2Glm5NextConfig

class VidCom2Glm5NextForConditionalGeneration(VidCom2GenerationMixin, Glm5NextForConditionalGeneration):
    config: VidCom2Glm5NextConfig

class VidCom2Cosmos3OmniConfig(FamilyConfig, Cosmos3OmniConfig): ...

class VidCom2Cosmos3OmniModel(QwenVideoModelMixin, Cosmos3OmniModel):
    config: VidCom2Cosmos3OmniConfig

class VidCom2Cosmos3OmniForConditionalGeneration(VidCom2GenerationMixin, Cosmos3OmniForConditionalGeneration):
    config: VidCom2Cosmos3OmniConfig
