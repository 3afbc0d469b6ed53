/** A file carried along as it is; the import is its path, inside the executable too. */
declare module "*.gz" {
  const path: string;
  export default path;
}
