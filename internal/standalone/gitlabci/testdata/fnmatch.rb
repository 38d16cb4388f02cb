# Reads a pattern and a path a line, with a tab between, and writes them with the answer of Ruby's File.fnmatch?, with the
# flags with which GitLab matches the paths of rules:changes, rules:exists, only:changes and except:changes. The first line
# is the version of Ruby.
puts RUBY_VERSION
STDIN.set_encoding("UTF-8")
flags = File::FNM_PATHNAME | File::FNM_DOTMATCH | File::FNM_EXTGLOB
STDIN.each_line(chomp: true) do |line|
  pattern, path = line.split("\t", 2)
  puts [pattern, path, File.fnmatch?(pattern, path, flags)].join("\t")
end
