# The engines that tests, benchmarks and `kanjo dev` run on. Included by the root Makefile.

.PHONY: engines engines-verify

# Fetches what is missing; a second run changes nothing.
engines:
	@hack/fetch-engines.sh

# Checks every fetched file against its recorded SHA-256 and replaces what is damaged.
engines-verify:
	@hack/fetch-engines.sh --verify
