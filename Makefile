# Two commands for users: `make run` and `make test`. `make check` is what CI runs, in this order.

GOLANGCI    := github.com/golangci/golangci-lint/v2@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.3.0
BENCHSTAT   := go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
PROTOC_GEN  := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GRPC := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
INFO    := github.com/stepmux/stepmux/internal/buildinfo

# Without the debugging pages of gRPC, which slow down every start of the VM's end. The VM's end fetches by HTTP/1.1.
TAGS     := grpcnotrace
VM_TAGS  := grpcnotrace,nethttpomithttp2
LDFLAGS  := -s -w -X $(INFO).version=$(VERSION) -X $(INFO).commit=$(COMMIT)
# The programs have no debug information. If the compiler makes none, it takes a tenth less time.
BUILD    := CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false

# The VM's end is uploaded to each VM, so it must be small. Only packages that handle each byte or line of a log or of a
# transfer, and the packages that they use, are compiled with inlining; packages that handle whole blocks lose nothing
# without it.
INLINE := runtime/... internal/... syscall bytes bufio io strconv slices unicode/... \
  math math/bits encoding/base64 encoding/binary encoding/hex hash/... compress/... \
  crypto/md5 crypto/sha1 crypto/sha256 crypto/subtle \
  $(addprefix crypto/internal/,fips140deps/... $(addprefix fips140/,alias subtle sha256 sha512 aes/...)) \
  $(addprefix github.com/stepmux/stepmux/remote/,pipe job/joblog step/mask)
# Go's earlier garbage collector is 45 KB smaller, and an idle serve has 0.6 MiB less with it. It is taken from a Go that
# still has it.
EARLIER_GC := $(shell GOEXPERIMENT=nogreenteagc go env GOEXPERIMENT 2>/dev/null)
INIT_BUILD := GOEXPERIMENT=$(EARLIER_GC) $(BUILD) -tags $(VM_TAGS) -gcflags='all=-dwarf=false -l'
VM_BUILD := $(INIT_BUILD) $(INLINE:%=-gcflags=%=-dwarf=false)
# Functions begin at any byte (arm64: at multiples of 4): the default of 32 is space between them.
VM_LDFLAGS := $(LDFLAGS) -funcalign=$$(case $$(go env GOARCH) in amd64) echo 1 ;; *) echo 4 ;; esac)
MACHINES := linux-amd64 linux-arm64
NATIVE    = $(shell go env GOOS)-$(shell go env GOARCH)

# has_init says whether stepmux-init has an entry for the machine. There it is joined into the programs that start inits,
# at addresses of its own. On others these are their own inits. with_init puts it into the program $(1).
has_init = [ -f cmd/stepmux-init/entry_$$(go env GOARCH).s ]
with_init = $(INIT_BUILD) -ldflags "$(VM_LDFLAGS) -E main.entry -T 0x8001000" -o "$(1).init" ./cmd/stepmux-init && \
  env -u GOOS -u GOARCH CGO_ENABLED=0 go run -trimpath -gcflags=all=-dwarf=false ./internal/joinelf "$(1)" "$(1).init" && \
  rm "$(1).init"
# vm_end builds the file $(1), a stepmux-vm, and the file $(2), the stepmux-fetch that it starts and whose checksum it
# knows. The go command keeps a file that it takes for its own of these sources, so the joined one goes first.
vm_end = $(VM_BUILD) -ldflags "$(VM_LDFLAGS)" -o "$(2)" ./cmd/stepmux-fetch && \
  sum=$$(sha256sum <"$(2)") && sum="-X $(INFO).fetchSum=$${sum%% *}" && \
  if ! $(has_init); then \
    $(VM_BUILD) -ldflags "$(VM_LDFLAGS) $$sum" -o "$(1)" ./cmd/stepmux-vm; \
  else \
    rm -f "$(1)" && $(VM_BUILD) -tags $(VM_TAGS),joined -ldflags "$(VM_LDFLAGS) $$sum" -o "$(1)" ./cmd/stepmux-vm && \
    $(call with_init,$(1)); \
  fi
# manager builds the file $(1), a stepmux that carries the VM's end, by way of the file $(1).linked: the go command does
# not link that again if nothing has changed. A program that runs cannot be written to, so a new file takes its place.
manager = $(BUILD) -tags $(TAGS),carry -ldflags '$(LDFLAGS)' -o "$(1).linked" ./cmd/stepmux && $(call finish,$(1))
finish = rm -f "$(1)" && cp "$(1).linked" "$(1)" && if $(has_init); then $(call with_init,$(1)); fi

FUZZTIME ?= 10s
FUZZ     ?= ^Fuzz
BENCH    ?= $(if $(QUICK),^Benchmark(SpawnLatency|ProxyThroughput|Neighbour|Density|Pool)$$/^(first|down|up|flood|Capacity|goroutines),.)
BENCHTIME ?= $(if $(QUICK),1ms,200ms)
BASE     ?= bench/baseline.txt
OUT      ?= bin/stepmux-vm
BUILDS   ?= 6
TESTFLAGS ?=
JOBS     ?= 2
PREFIX   ?= /usr/local
SHARED   := $(addprefix share/,man/man1 bash-completion/completions zsh/site-functions fish/vendor_completions.d)
API      ?= remote/api
MANAGER_API ?= instance/manager

.DEFAULT_GOAL := help

##@ Use stepmux

# cmd/stepmux/carried has the VM's ends of MACHINES only: an earlier build's for another machine may be of other sources.
.PHONY: build
build: $(MACHINES:%=carry-%) ## build bin/stepmux, which carries the VM's end for amd64 and arm64, and the other programs
	@rm -f $(filter-out $(addprefix %-,$(addsuffix .gz,$(MACHINES))),$(wildcard cmd/stepmux/carried/*.gz))
	$(call manager,bin/stepmux)
	$(BUILD) -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/stepmux-custom-executor ./cmd/stepmux-custom-executor
	for p in stepmux-vm stepmux-fetch; do cp bin/$$p-$(NATIVE) bin/$$p || exit 1; done

# The VM's end for other machines takes as long again. Their VMs need a program of `make build`.
.PHONY: native
native:
	@$(MAKE) --no-print-directory build MACHINES='$(NATIVE)'

# A file is packed again only if it has changed. Its modification time does not show that: the go command renews it.
.PHONY: carry-%
carry-%:
	@echo "compile the VM's end for $*"
	@mkdir -p bin cmd/stepmux/carried
	@export GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) && $(call vm_end,bin/stepmux-vm-$*,bin/stepmux-fetch-$*)
	@for p in stepmux-vm-$* stepmux-fetch-$*; do \
	  gzip -dc cmd/stepmux/carried/$$p.gz 2>/dev/null | cmp -s - bin/$$p || \
	    { gzip -9nc bin/$$p >bin/$$p.gz && mv bin/$$p.gz cmd/stepmux/carried; } || exit 1; \
	done

# For benchmarks and measurements.
.PHONY: vm-end
vm-end: ## build only the VM's end, as for a release: to the file OUT, and stepmux-fetch next to it
	@$(call vm_end,$(OUT),$(dir $(OUT))stepmux-fetch)

# For tests, which link stepmux in their own way.
.PHONY: finish
finish:
	@$(call finish,$(OUT))

.PHONY: install
install: build man ## install the programs, man pages and completions for bash, zsh and fish below PREFIX
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin $(SHARED))
	install bin/stepmux bin/stepmux-vm bin/stepmux-fetch bin/stepmux-custom-executor $(DESTDIR)$(PREFIX)/bin
	install -m 0644 bin/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	bin/stepmux completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/stepmux
	bin/stepmux completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_stepmux
	bin/stepmux completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/stepmux.fish

.PHONY: man
man: build ## write the man pages of all commands to bin/man
	rm -rf bin/man
	mkdir -p bin/man
	bin/stepmux man --date "$(shell git log -1 --format=%cs 2>/dev/null)" bin/man

# Archives of the manager for each machine, the VM's ends as files, and their checksums.
.PHONY: release
release: $(MACHINES:%=carry-%) ## write archives of the programs for all platforms, and their checksums, to bin/release
	rm -rf bin/release
	mkdir -p bin/release
	for m in $(MACHINES); do \
	  dir=bin/release/stepmux-$(VERSION)-$$m && mkdir $$dir && \
	  export GOOS=$${m%-*} GOARCH=$${m#*-} && $(call manager,$$dir/stepmux) && rm "$$dir/stepmux.linked" && \
	  $(BUILD) -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $$dir/stepmux-custom-executor ./cmd/stepmux-custom-executor && \
	  cp bin/stepmux-vm-$$m $$dir/stepmux-vm && cp bin/stepmux-fetch-$$m $$dir/stepmux-fetch && cp README.md CHANGELOG.md LICENSE $$dir && \
	  tar -C bin/release --owner=0 --group=0 --sort=name --mtime='@0' -cf - stepmux-$(VERSION)-$$m | gzip -9n >$$dir.tar.gz && \
	  for p in stepmux-vm stepmux-fetch; do cp bin/$$p-$$m bin/release/$$p-$(VERSION)-$$m || exit 1; done && rm -r $$dir || exit 1; \
	done
	cd bin/release && sha256sum stepmux* >SHA256SUMS && cat SHA256SUMS

.PHONY: run
run: native ## run BUILDS builds of examples/hello.yml at once on a VM embedded in the program, or in containers of IMAGE
	bin/stepmux run $(if $(IMAGE),--image $(IMAGE)) --builds $(BUILDS) --capacity $(BUILDS) examples/hello.yml

.PHONY: manager
manager: native ## run a manager with an embedded VM, submit three builds to it, and show their results
	STEPMUX=bin/stepmux sh examples/manager.sh

.PHONY: example-sources
example-sources: native ## serve the steps of examples/sources, and print the commands to run them with
	go run ./examples/sources

##@ Test

# The packages whose tests take longest begin first: what is left at the end is short, and keeps all processors busy.
LONGEST := $(addprefix ./,instance connector cmd/stepmux instance/manager remote/step/action mux)

.PHONY: test
test: ## run all tests; the end says which parts were missing, and how many tests skipped for each
	@LONGEST='$(LONGEST)' .ci/tests $(TESTFLAGS)

# SINCE is the commit that changed packages are compared with.
SINCE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD~ 2>/dev/null)

.PHONY: quick
quick: ## compile all; vet packages changed since SINCE (origin/main) and their importers; test the changed ones
	@.ci/quick '$(SINCE)' $(TESTFLAGS)

# Libraries that handle each byte by itself take ten times as long under the race detector. They share nothing.
UNRACED := $(patsubst %,-gcflags=%=-race=false,github.com/coder/websocket golang.org/x/net/websocket compress/flate)
RACE    := -race $(UNRACED)

# By default each program with the race detector sleeps for a second at its end.
.PHONY: race
race: ## run all tests with the race detector
	GORACE=atexit_sleep_ms=0 go test $(RACE) -shuffle=on -timeout 30m $(TESTFLAGS) $(LONGEST) ./...
	go -C bench/report test $(TESTFLAGS) ./...

# The linters need all packages compiled, those of the tests too. With RACED=1 they take what `make race` compiles.
.PHONY: lint
lint: bin/tools/golangci-lint ## check format, modules and the linters
	go mod tidy -diff
	go -C bench/report mod tidy -diff
	$(if $(RACED),CGO_ENABLED=1 GOFLAGS="$(GOFLAGS) $(RACE)") GOGC=400 GOMEMLIMIT=3GiB \
	  bin/tools/golangci-lint run ./... # garbage collection is a third of its time

bin/tools/golangci-lint: Makefile .golangci.yml .ci/linter
	.ci/linter $(GOLANGCI) bin/tools

.PHONY: vuln
vuln: bin/tools/govulncheck ## check for known vulnerabilities (needs the network)
	bin/tools/govulncheck ./...

bin/tools/govulncheck: Makefile
	mkdir -p bin/tools
	GOBIN=$(CURDIR)/bin/tools go install $(GOVULNCHECK)

.PHONY: fuzz
fuzz: ## fuzz the targets that match FUZZ, JOBS at once, each for FUZZTIME (500x means 500 inputs)
	@bench/fuzz '$(FUZZ)' $(FUZZTIME) $(JOBS)

.PHONY: prove
prove: ## run the long proof WHAT (manager-faults, soak, hostile ...); without WHAT, list all, with the time and parts they need
	@bench/prove $(WHAT)

# These were targets of their own; their names work for one version.
EARLIER := manager-faults cluster container-kills container-cases kubernetes scale large hostile hostile-ends \
  isolation-programs walls-programs custom-executor ssh-door page faults soak linger-campaign fuzz-long proofs tables
.PHONY: $(EARLIER)
$(EARLIER):
	@echo "make $@ is now: make prove WHAT=$(PROOF)" >&2
	@bench/prove $(PROOF)
walls-programs: PROOF = isolation-programs
fuzz-long: PROOF = fuzz
PROOF = $@

.PHONY: faults-report
##@ Write files that are generated
faults-report: ## write the tables of docs/reliability.md from the results in bin/faults
	go run ./bench/faults/faultrig report

##@ Measure

# They are large, and no benchmark needs them: those that are not there are reported as missing.
.PHONY: bin/peers
bin/peers: ## install the programs that BenchmarkLocalPipeline measures beside local; needs npm and the network
	npm install --no-audit --no-fund --prefix bin/peers gitlab-ci-local@4.60.0
	GOBIN=$(CURDIR)/bin/peers go install github.com/nektos/act@v0.2.89

.PHONY: bench
bench: ## run the benchmarks that match BENCH, all in about ten minutes; with QUICK=1 the main ones, small; see bin/bench.txt
	mkdir -p bin
	rm -f bin/bench-samples.json
	STEPMUX_BENCH_SAMPLES=$(CURDIR)/bin/bench-samples.json \
	  go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) $(if $(QUICK),-short) -timeout 1h ./bench >bin/bench.txt || { cat bin/bench.txt; exit 1; }
	cat bin/bench.txt

# The worktree has a Makefile of its own, which knows how to build that commit.
.PHONY: bench-price
bench-price: ## measure the price of a build beside that of the commit SINCE; see bin/bench.txt
	@dir=$$(mktemp -d) && trap 'git worktree remove --force "$$dir/base"; rm -rf "$$dir"' EXIT && \
	git worktree add --quiet --detach "$$dir/base" '$(SINCE)' && \
	$(MAKE) --no-print-directory -C "$$dir/base" native MAKEFLAGS= && \
	STEPMUX_BENCH_BASE="$$dir/base/bin" $(MAKE) --no-print-directory bench BENCH='^BenchmarkPrice$$'

.PHONY: bench-smoke
bench-smoke: ## run each benchmark once, at its smallest size, to check that it works
	go test -vet=off -run '^$$' -bench . -benchtime 1x -short -timeout 30m \
	  $$(git grep -l '^func Benchmark' -- bench instance pool remote | xargs dirname | sort -u | sed 's,^,./,')

# The report is a module of its own, so that its drawing libraries are no dependencies of the product.
.PHONY: bin/report
bin/report:
	go -C bench/report build -o $(CURDIR)/bin/report .

.PHONY: bench-check
bench-check: bin/report ## compare the results of make bench with the project's goals
	bin/report check bin/bench.txt

.PHONY: bench-report
bench-report: bin/report ## write docs/benchmarks.md and the README's table from the results of make bench
	bin/report write -samples bin/bench-samples.json -page docs/benchmarks.md -readme README.md bin/bench.txt

.PHONY: bench-baseline
bench-baseline: bin/report ## store the results of make bench in BASE, to be committed
	bin/report lines -samples bin/bench-samples.json bin/bench.txt >bin/bench-lines.txt
	cp bin/bench-lines.txt $(BASE)

# benchstat does not compare files with different machines or commits; -ignore makes it compare them.
.PHONY: bench-compare
bench-compare: bin/report ## compare the results of make bench with the earlier ones in the file BASE; fails if a stable figure is worse
	@test -r "$(BASE)" || { echo "$(BASE) is not there: name a file of earlier results, as make bench-compare BASE=bench/baseline.txt"; exit 2; }
	bin/report lines -samples bin/bench-samples.json bin/bench.txt >bin/bench-lines.txt
	@grep -hE '^(commit|cpu|processors|kernel|versions|load|others): ' $(BASE) | sed 's/^/base: /'
	$(BENCHSTAT) -ignore commit,cpu,processors,kernel,versions,benchtime,load,others,goos,goarch $(BASE) bin/bench-lines.txt
	bin/report compare -base $(BASE) bin/bench-lines.txt

# The programs of make prove WHAT=kubernetes are built once, and kept: it takes 9 minutes of a processor.
bin/kubernetes/%: internal/testing/kubetest/control/go.mod
	cd internal/testing/kubetest/control && CGO_ENABLED=0 go build -ldflags '-s -w' -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/$*
	touch $@

# Those of make prove WHAT=gitea: 16 minutes of a processor. SQLite is C.
bin/gitea/gitea: internal/testing/giteatest/server/go.mod
	cd internal/testing/giteatest/server && version=$$(go list -m -f '{{.Version}}' code.gitea.io/gitea) && \
	  CGO_ENABLED=1 go build -tags 'sqlite sqlite_unlock_notify' -ldflags "-s -w -X main.Version=$${version#v}" \
	  -o $(CURDIR)/$@ code.gitea.io/gitea && cd "$$(go list -m -f '{{.Dir}}' code.gitea.io/gitea)" && \
	  mkdir -p $(CURDIR)/bin/gitea/static && cp -r templates options public $(CURDIR)/bin/gitea/static
	chmod -R u+w bin/gitea/static
	touch $@

bin/gitea/runner: internal/testing/giteatest/runner/go.mod
	cd internal/testing/giteatest/runner && CGO_ENABLED=0 go build -ldflags '-s -w' -o $(CURDIR)/$@ gitea.com/gitea/runner
	touch $@

.PHONY: generate
##@ Write files that are generated
generate: ## regenerate the protocol code in API and MANAGER_API (needs protoc)
	mkdir -p bin/tools $(API)
	GOBIN=$(CURDIR)/bin/tools go install $(PROTOC_GEN)
	GOBIN=$(CURDIR)/bin/tools go install $(PROTOC_GRPC)
	PATH=$(CURDIR)/bin/tools:$$PATH protoc -I remote/api \
	  --go_out=$(API) --go_opt=paths=source_relative \
	  --go-grpc_out=$(API) --go-grpc_opt=paths=source_relative \
	  stepmuxv1/definition.proto stepmuxv1/job.proto stepmuxv1/steprunner.proto runnerproto/runner.proto
	mkdir -p $(MANAGER_API)
	PATH=$(CURDIR)/bin/tools:$$PATH protoc -I instance/manager -I remote/api \
	  --go_out=$(MANAGER_API) --go_opt=paths=source_relative \
	  --go-grpc_out=$(MANAGER_API) --go-grpc_opt=paths=source_relative managerv1/manager.proto

##@ Test

.PHONY: static
static: build ## all of check without the tests; the linters include go vet's checks
	$(MAKE) lint
	.ci/house --check

.PHONY: check
check: static ## what CI runs: build, vet, lint, the limits of .ci/house, tests with the race detector
	$(MAKE) race

##@ Help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@ / { group = substr($$0, 5); if (!(group in list)) order[++n] = group } \
	  /^[a-z-]+:.*## / { list[group] = list[group] sprintf("  %-18s %s\n", $$1, $$2) } \
	  END { for (i = 1; i <= n; i++) printf "%s%s\n%s", (i > 1 ? "\n" : ""), order[i], list[order[i]] }' $(MAKEFILE_LIST)
