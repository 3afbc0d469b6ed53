export * from "./control.ts";
export * from "./stream-transport.ts";
