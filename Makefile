.PHONY: test style docs check
test: ; pytest
style: ; ruff check . && ruff format --check .
docs: ; mkdocs build --strict
check: ; .ci/run
