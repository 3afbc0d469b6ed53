export { createHttpUpstream } from "./http-upstream.ts";
export type * from "./upstream.ts";
