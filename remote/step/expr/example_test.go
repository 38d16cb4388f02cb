package expr_test

import (
	"fmt"

	"github.com/stepmux/stepmux/remote/step/expr"
)

func Example() {
	inputs, err := expr.New(map[string]any{"name": "app", "tag": "", "replicas": 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	scope := expr.Scope{"inputs": inputs}
	for _, text := range []string{
		`deploy ${{ inputs.name + ":" + (inputs.tag || "latest") }}`,
		"${{ inputs.replicas + 1 }}",
		"${{ inputs.nmae }}",
	} {
		t, err := expr.ParseTemplate(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		v, err := t.Eval(scope)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(v.Kind(), v)
	}
	// Output:
	// string deploy app:latest
	// number 4
	// 1:11: inputs.nmae was not found; did you mean name?
}
