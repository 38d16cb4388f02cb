# What the step of this source does: it takes a text and passes it on.
said="local($1)"
echo "$said"
printf '{"name":"said","value":"%s"}\n' "$said" >>"$2"
