// Package language checks the texts of the repository: comments, messages and documents use
// the terms of docs/glossary.md, no Go file is longer than 500 lines, each package of more than 100
// lines has tests, and the files that docs/architecture.md names exist.
package language
