# Reads scalars of YAML, one a line, and writes each with the class and the text of its value, as GitLab's server reads
# it: the options are those of Gitlab::Config::Loader::Yaml. With an argument it reads them as plain scalars without YAML
# around them. The first line is the version of psych.
require "date"
require "yaml"

restricted = Psych::ClassLoader::Restricted.new(["Symbol"], [])
puts Psych::VERSION
STDIN.set_encoding("UTF-8")
STDIN.each_line(chomp: true) do |text|
  value =
    if ARGV.empty?
      YAML.safe_load("a: #{text}\n", permitted_classes: [Symbol], permitted_symbols: [], aliases: true)["a"]
    else
      Psych::ScalarScanner.new(restricted).tokenize(text)
    end
  puts [text, value.class, value.to_s].join("\t")
rescue Psych::DisallowedClass, ArgumentError
  puts [text, "refused", ""].join("\t")
end
