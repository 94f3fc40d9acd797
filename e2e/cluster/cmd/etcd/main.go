// Command etcd is etcd's own server, unchanged, built from its Go module.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"

	"github.com/muster-dev/muster/e2e/cluster/internal/parent"
)

func main() {
	parent.ExitWhenGone()
	etcdmain.Main(os.Args)
}
