export { aliases, blocks, namespaces, run } from "./tables.ts";
