export { holdAnswer } from "./hold.ts";
export { createHttpUpstream } from "./http-upstream.ts";
export { readAll } from "./read-all.ts";
export type * from "./upstream.ts";
