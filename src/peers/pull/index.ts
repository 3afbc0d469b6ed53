export { Admission, type Grant } from "./admission.ts";
export { Breaker } from "./breaker.ts";
export { createPuller } from "./create-puller.ts";
export * from "./puller.ts";
export type * from "./puller-parts.ts";
