export * from "./describe.ts";
export * from "./kinds.ts";
export * from "./validity.ts";
