# Regatta: the commands that a newcomer needs.

.PHONY: test lint

test: ## Everything that can be tested on this machine.
	cargo test --workspace --locked

lint: ## Format and clippy, as in CI.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
