/**
 * A file that is included in the executable unchanged. The import is its path, which also works
 * inside the executable.
 */
declare module "*.gz" {
  const path: string;
  export default path;
}
