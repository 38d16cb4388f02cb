# Two commands for users: `make run` and `make test`. `make check` is what CI runs, in this order.

GOLANGCI    := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.3.0
BENCHSTAT   := go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
PROTOC_GEN  := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GRPC := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

# A release has no debugging pages of gRPC: they cost every start of the VM's end.
RELEASE := -trimpath -tags grpcnotrace

FUZZTIME ?= 10s
FUZZ     ?= ^Fuzz
BENCH    ?= .
BENCHTIME ?= 250ms
BASE     ?= bench/baseline.txt
BUILDS   ?= 6
TESTFLAGS ?=
MESSAGES ?= 1000000
SEED     ?= 1
N        ?= 200
TIME     ?= 1h
JOBS     ?= 2
DURATION ?= 1h
WARMUP   ?= 30m

.DEFAULT_GOAL := help

.PHONY: build
build: ## build bin/stepmux, the program of both ends
	CGO_ENABLED=0 go build $(RELEASE) -o bin/stepmux ./cmd/stepmux

.PHONY: run
run: build ## run examples/hello.yml as BUILDS builds at once on a VM embedded in the program
	bin/stepmux run --builds $(BUILDS) --capacity $(BUILDS) examples/hello.yml

.PHONY: example-sources
example-sources: build ## serve the steps of examples/sources, and print the commands to run them with
	go run ./examples/sources

.PHONY: test
test: ## run all tests
	go test -shuffle=on $(TESTFLAGS) ./...
	go -C bench/report test $(TESTFLAGS) ./...

.PHONY: race
race: ## run all tests with the race detector
	go test -race -shuffle=on -timeout 15m $(TESTFLAGS) ./...
	go -C bench/report test $(TESTFLAGS) ./...

.PHONY: lint
lint: ## check format, modules and the linters
	go mod tidy -diff
	go -C bench/report mod tidy -diff
	$(GOLANGCI) run ./...

.PHONY: vuln
vuln: bin/tools/govulncheck ## look for known vulnerabilities (needs the vulnerability database)
	bin/tools/govulncheck ./...

bin/tools/govulncheck: Makefile
	mkdir -p bin/tools
	GOBIN=$(CURDIR)/bin/tools go install $(GOVULNCHECK)

.PHONY: fuzz
fuzz: ## fuzz the targets FUZZ (a regexp) names, JOBS at once, each for FUZZTIME (500x: so many inputs)
	go run ./bench/faults/faultrig fuzz -targets '$(FUZZ)' -each $(FUZZTIME) -jobs $(JOBS)

.PHONY: fuzz-long
fuzz-long: FUZZTIME = 30m
fuzz-long: ## fuzz until each target had FUZZTIME in all, going on where it stopped; make faults-report tells of it
	go run ./bench/faults/faultrig fuzz -targets '$(FUZZ)' -each $(FUZZTIME) -jobs $(JOBS) -journal bin/faults/fuzz.jsonl

.PHONY: hostile
hostile: ## let hostile servers and relays send MESSAGES messages of each kind, with their memory measured
	STEPMUX_HOSTILE=$(MESSAGES) go test -v -timeout 3h -run 'Hostile|Malformed|Floods|EveryByte' ./mux ./remote
	for i in 1 2 3 4 5 6 7 8 9 10; do \
	  STEPMUX_HOSTILE=$$(($(MESSAGES) / 10)) go test -count=1 -timeout 3h -run Nothing ./mux || exit 1; \
	done # in ten processes: what the library leaves behind of a connection goes with them

.PHONY: faults
faults: build ## break things while builds run: N faults drawn from SEED, for TIME at most, going on where it stopped; ROUND repeats one round, KINDS and ROUTES choose
	go build -o bin/faultrig ./bench/faults/faultrig
	bin/faultrig run -seed $(SEED) -n $(N) -time $(TIME) -jobs $(JOBS) -kinds '$(KINDS)' -routes '$(ROUTES)' $(if $(ROUND),-round $(ROUND))

.PHONY: soak
soak: build ## one manager, ten VMs, builds, faults and recycling for WARMUP and DURATION: in that nothing may grow
	go build -o bin/faultrig ./bench/faults/faultrig
	bin/faultrig soak -seed $(SEED) -warm-up $(WARMUP) -duration $(DURATION)

.PHONY: faults-report
faults-report: ## write the tables of docs/reliability.md from what make faults, make soak and make fuzz-long kept in bin/faults
	go run ./bench/faults/faultrig report

.PHONY: bench
bench: ## run the benchmarks BENCH (a regexp) names, all in about ten minutes; the output is kept in bin/bench.txt
	mkdir -p bin
	rm -f bin/bench-samples.json
	STEPMUX_BENCH_SAMPLES=$(CURDIR)/bin/bench-samples.json \
	  go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -timeout 1h ./bench >bin/bench.txt || { cat bin/bench.txt; exit 1; }
	cat bin/bench.txt

.PHONY: bench-smoke
bench-smoke: ## run each benchmark once, fewer and smaller ones, to see that it runs
	go test -run '^$$' -bench . -benchtime 1x -short -timeout 30m ./bench ./pool ./remote/...

# The page of the benchmarks is a module of its own: what draws its pictures is no part of the product.
.PHONY: bin/report
bin/report:
	go -C bench/report build -o $(CURDIR)/bin/report .

.PHONY: bench-check
bench-check: bin/report ## hold what make bench measured against the project's goals
	bin/report check bin/bench.txt

.PHONY: bench-report
bench-report: bin/report ## write docs/benchmarks.md and the README's table from what make bench measured
	bin/report write -samples bin/bench-samples.json -page docs/benchmarks.md -readme README.md bin/bench.txt

.PHONY: bench-baseline
bench-baseline: bin/report ## keep what make bench measured as BASE, to be committed
	bin/report lines -samples bin/bench-samples.json bin/bench.txt >bin/bench-lines.txt
	cp bin/bench-lines.txt $(BASE)

# benchstat sets files apart that tell of other machines and runs; -ignore has it compare them all the same.
.PHONY: bench-compare
bench-compare: bin/report ## compare what make bench measured with the earlier results in the file BASE
	@test -r "$(BASE)" || { echo "$(BASE) is not there: name a file of earlier results, as make bench-compare BASE=bench/baseline.txt"; exit 2; }
	bin/report lines -samples bin/bench-samples.json bin/bench.txt >bin/bench-lines.txt
	@grep -hE '^(commit|cpu|processors|kernel|versions|load|others): ' $(BASE) | sed 's/^/base: /'
	$(BENCHSTAT) -ignore commit,cpu,processors,kernel,versions,load,others,goos,goarch $(BASE) bin/bench-lines.txt

.PHONY: proofs
proofs: ## take out each mechanism that keeps a promise of docs/reliability.md, and see its test fail
	go test -tags proofs -run WithoutItsMechanism -count=1 -v -timeout 1h ./internal/promises

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
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
