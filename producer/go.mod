module github.com/kanjo-dev/kanjo/producer

go 1.26.0

require github.com/kanjo-dev/kanjo/schemas v0.0.0

require github.com/twmb/franz-go v1.22.3 // indirect

replace github.com/kanjo-dev/kanjo/schemas => ../schemas
