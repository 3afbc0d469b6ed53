export * from "./block-server.ts";
