// Command kube-controller-manager is Kubernetes' own, unchanged, built from its Go module.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"github.com/muster-dev/muster/e2e/cluster/internal/parent"
)

func main() {
	parent.ExitWhenGone()
	os.Exit(cli.Run(app.NewControllerManagerCommand()))
}
