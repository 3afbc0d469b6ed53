/** Where Bun keeps the files inside a compiled executable. */
const INSIDE = "/$bunfs/";

/**
 * The words that start this same program as another process: the executable alone, or Bun and the
 * entry file in a checkout.
 */
export function selfCommand(): string[] {
  return Bun.main.startsWith(INSIDE) ? [process.execPath] : [process.execPath, Bun.main];
}
