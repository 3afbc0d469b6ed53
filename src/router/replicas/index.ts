export * from "./announcement.ts";
export * from "./load-codec.ts";
export * from "./replica-group.ts";
