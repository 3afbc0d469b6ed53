export * from "./admission.ts";
export * from "./fetch-options.ts";
export * from "./fetcher.ts";
export { Breaker } from "./peer-path.ts";
