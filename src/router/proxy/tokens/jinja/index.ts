export * from "./lexer.ts";
export * from "./template.ts";
