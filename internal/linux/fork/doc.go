// Package fork knows of the children that this process is just forking, for its
// tools. Until its exec such a child has copies of all descriptors: what was closed
// here meanwhile is open there, and so a mount is busy or a lock is held although
// nobody uses it. On a machine that has too much to do that takes longer than
// anybody could guess; but it is known when it is over.
//
// What may enter: how long to bear with such a child. What is busy, and what is said
// of it, is its user's.
package fork
