// Command kanjo is the one binary: each stage, the month end and the tools are its subcommands.
package main

func main() {}
