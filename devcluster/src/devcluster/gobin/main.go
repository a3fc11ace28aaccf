// Command controlplane is etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and kubectl in one binary.
//
// The five share almost all of their code, so one binary is built in the time
// of the largest and cached as one file. It chooses by the name that it is
// called by (a link named kubectl is kubectl) and else by its first argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// components maps a name to the function that makes its command. etcd is not
// here: it has no cobra command with a context, only a main of its own.
var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := components[name]; !known && name != "etcd" {
		if len(os.Args) < 2 {
			fail("usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl [flags]")
		}
		// Each main below reads os.Args as if it had been started by its own name.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	switch command, known := components[name]; {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case name == "kubectl":
		if err := cli.RunNoErrOutput(command()); err != nil {
			util.CheckErr(err) // exits with kubectl's own code and wording
		}
	case known:
		os.Exit(cli.Run(command()))
	default:
		fail(fmt.Sprintf("controlplane: no component is named %q", name))
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(2)
}
