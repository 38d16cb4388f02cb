package mask_test

import (
	"fmt"
	"os"

	"github.com/stepmux/stepmux/remote/step/mask"
)

func ExampleSet() {
	var secrets mask.Set
	if err := secrets.Add("p4ssw0rd!"); err != nil {
		fmt.Println("not masked:", err)
	}
	fmt.Println(secrets.Mask("curl -u me:p4ssw0rd!"))

	w := secrets.NewWriter(os.Stdout)
	fmt.Fprint(w, "the password is p4ss")
	fmt.Fprintln(w, "w0rd!, or p4ssw0rd%21")
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// curl -u me:[MASKED]
	// the password is [MASKED], or [MASKED]
}
