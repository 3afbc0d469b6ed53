export * from "./json.ts";
export * from "./values.ts";
