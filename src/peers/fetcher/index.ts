export { Admission, type Grant } from "./admission.ts";
export { createFetcher } from "./create-fetcher.ts";
export * from "./fetcher.ts";
export { Breaker } from "./peer-path.ts";
