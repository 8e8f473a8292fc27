"""Which families the plugin serves, and which file has their classes. All others are refused by name (`compat.py`)."""

# The families that are served, by the file with their classes.
FILES = {
    "llava": ("LlavaOnevision", "LlavaVideo", "LlavaNextVideo"),
    "qwen2_vl": ("Qwen2VL", "Qwen2_5_VL"),
    "qwen3_vl": ("Qwen3VL", "Qwen3VLMoe", "Qwen3_5", "Qwen3_5Moe", "Cosmos3Omni"),
    "glm": ("Glm4v", "Glm4vMoe", "Glm46V"),
    "internvl": ("InternVL",),
    "gemma4": ("Gemma4",),
    "minicpmv": ("MiniCPMV4_6",),
}
SERVED = {
    f"VidCom2{family}ForConditionalGeneration": f"{file}:VidCom2{family}ForVllm"
    for file, families in FILES.items()
    for family in families
}
