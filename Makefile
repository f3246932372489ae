# Regatta: what a newcomer types. `make` lists it.

.DEFAULT_GOAL := help
.PHONY: help build demo test bench lint check docs python clean

help: ## This list.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

build: toolchain ## The binary, target/release/regatta.
	cargo build --release --locked -p regatta

demo: toolchain ## A distributed training that survives a kill, on this machine, in a data directory of its own.
	scripts/demo

test: toolchain ## Everything that can be tested here; sets up a Python with torch when there is none.
	scripts/test

bench: toolchain ## The measurements that the README quotes.
	scripts/bench

lint: toolchain ## Format and clippy, as in CI.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

check: toolchain ## House rules: layers, sizes, words, list of dependencies, generated files.
	cargo xtask layering
	cargo xtask tidy
	cargo xtask generate --check

docs: toolchain ## Writes the generated files anew.
	cargo xtask generate

python: ## A Python with torch, found or made in .venv.
	scripts/python-env

clean: ## Removes what the demo left; `cargo clean` and `rm -rf .venv` remove the rest.
	rm -rf .regatta-demo

.PHONY: toolchain
toolchain:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust with rustup, then run this again" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "a C linker is missing: install gcc or clang, then run this again" >&2; exit 1; }
