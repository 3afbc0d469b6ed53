export * from "./block-parts.ts";
export { WireReader, WireWriter } from "./bytes.ts";
export * from "./fields.ts";
export * from "./key-filter.ts";
export * from "./layout.ts";
export * from "./message-reader.ts";
export * from "./requests-and-answers.ts";
