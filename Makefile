# Two commands for users: `make run` and `make test`. `make check` is what CI runs, in this order.

GOLANGCI    := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0
PROTOC_GEN  := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GRPC := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

# A release has no debugging pages of gRPC: they cost every start of the VM's end.
RELEASE := -trimpath -tags grpcnotrace

FUZZTIME ?= 10s
BENCH    ?= .
BUILDS   ?= 6
TESTFLAGS ?=

.DEFAULT_GOAL := help

.PHONY: build
build: ## build bin/stepmux, the program of both ends
	CGO_ENABLED=0 go build $(RELEASE) -o bin/stepmux ./cmd/stepmux

.PHONY: run
run: build ## run examples/hello.yml as BUILDS builds at once on a VM embedded in the program
	bin/stepmux run --builds $(BUILDS) --capacity $(BUILDS) examples/hello.yml

.PHONY: test
test: ## run all tests
	go test -shuffle=on $(TESTFLAGS) ./...

.PHONY: race
race: ## run all tests with the race detector
	go test -race -shuffle=on -timeout 15m $(TESTFLAGS) ./...

.PHONY: lint
lint: ## check format, modules and the linters
	go mod tidy -diff
	$(GOLANGCI) run ./...

.PHONY: vuln
vuln: ## look for known vulnerabilities (needs the vulnerability database)
	$(GOVULNCHECK) ./...

.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME
	@for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "== $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; \
	done

.PHONY: bench
bench: ## run the benchmarks BENCH (a regexp) names; the output is benchstat's input
	go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 1h ./...

.PHONY: generate
generate: ## generate the protocol code again (needs protoc)
	mkdir -p bin/tools
	GOBIN=$(CURDIR)/bin/tools go install $(PROTOC_GEN)
	GOBIN=$(CURDIR)/bin/tools go install $(PROTOC_GRPC)
	PATH=$(CURDIR)/bin/tools:$$PATH protoc -I remote/api \
	  --go_out=remote/api --go_opt=paths=source_relative \
	  --go-grpc_out=remote/api --go-grpc_opt=paths=source_relative \
	  stepmuxv1/definition.proto stepmuxv1/steprunner.proto runnerproto/runner.proto

.PHONY: check
check: build ## what CI runs: build, vet, lint, tests with the race detector
	go vet ./...
	$(MAKE) lint
	$(MAKE) race

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
