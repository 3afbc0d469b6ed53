const std = @import("std");

/// `zig build` makes the library; `bindings` rewrites src/native/abi.gen.ts; `test` runs the Zig
/// tests; `client` makes the library of the Python client; `stand-ins` makes libraries that tests
/// open instead of CUDA's and the verbs'.
pub fn build(b: *std.Build) void {
    const target = b.standardTargetOptions(.{});
    const optimize = b.standardOptimizeOption(.{});

    const library = b.addLibrary(.{
        .linkage = .dynamic,
        .name = "hearth",
        .root_module = b.createModule(.{
            .root_source_file = b.path("zig/root.zig"),
            .target = target,
            .optimize = optimize,
            .link_libc = true,
            .pic = true,
            .strip = optimize != .Debug,
        }),
    });
    b.installArtifact(library);

    const generator = b.addExecutable(.{
        .name = "generate-bindings",
        .root_module = b.createModule(.{
            .root_source_file = b.path("zig/generate.zig"),
            .target = b.graph.host,
            .link_libc = true,
        }),
    });
    const generated = b.addRunArtifact(generator).captureStdOut(.{});
    const update = b.addUpdateSourceFiles();
    update.addCopyFileToSource(generated, "src/native/abi.gen.ts");
    b.step("bindings", "Write src/native/abi.gen.ts").dependOn(&update.step);

    const tests = b.addTest(.{
        .root_module = b.createModule(.{
            .root_source_file = b.path("zig/root.zig"),
            .target = target,
            .optimize = optimize,
            .link_libc = true,
        }),
    });
    const test_step = b.step("test", "Run the Zig tests");
    test_step.dependOn(&b.addRunArtifact(tests).step);
    addClient(b, target, test_step);

    const stand_ins = b.step("stand-ins", "Make what stands in for the libraries of devices");
    for ([_][]const u8{ "cuda", "verbs" }) |name| {
        const module = b.createModule(.{
            .root_source_file = b.path(b.fmt("zig/testing/{s}/root.zig", .{name})),
            .target = target,
            .optimize = optimize,
            .link_libc = true,
            .pic = true,
        });
        for ([_][]const u8{ "base/mutex", "base/monotonic", "rdma/verbs" }) |shared| {
            module.addAnonymousImport(std.fs.path.basename(shared), .{
                .root_source_file = b.path(b.fmt("zig/{s}.zig", .{shared})),
            });
        }
        const stand_in = b.addLibrary(.{
            .linkage = .dynamic,
            .name = b.fmt("standin-{s}", .{name}),
            .root_module = module,
        });
        stand_ins.dependOn(&b.addInstallArtifact(stand_in, .{}).step);
        const own = b.addTest(.{ .root_module = module });
        test_step.dependOn(&b.addRunArtifact(own).step);
    }
}

/// The library of the Python client. It runs on every processor of the target's architecture, on
/// any C library; for x86-64 it has a second form of its calls, for AVX2 and AES.
fn addClient(b: *std.Build, target: std.Build.ResolvedTarget, test_step: *std.Build.Step) void {
    const arch = target.result.cpu.arch;
    const every: std.Target.Query = .{ .cpu_arch = arch, .os_tag = .linux, .abi = .none };
    const module = clientModule(b, "root", b.resolveTargetQuery(every));
    if (arch == .x86_64) {
        var query = every;
        query.cpu_features_add = std.Target.x86.featureSet(&.{ .avx2, .aes });
        module.addObject(b.addObject(.{
            .name = "hearth_client_avx2",
            .root_module = clientModule(b, "avx2", b.resolveTargetQuery(query)),
        }));
    }
    const library = b.addLibrary(.{
        .linkage = .dynamic,
        .name = "hearth_client",
        .root_module = module,
    });
    const step = b.step("client", "Make the library of the Python client");
    step.dependOn(&b.addInstallArtifact(library, .{}).step);
    const tests = b.addTest(.{ .root_module = clientModule(b, "root", target) });
    test_step.dependOn(&b.addRunArtifact(tests).step);
}

fn clientModule(
    b: *std.Build,
    comptime root: []const u8,
    target: std.Build.ResolvedTarget,
) *std.Build.Module {
    const options: std.Build.Module.CreateOptions = .{
        .target = target,
        .optimize = .ReleaseSafe,
        .pic = true,
        .strip = true,
    };
    var hash_options = options;
    hash_options.root_source_file = b.path("zig/hash/root.zig");
    var client_options = options;
    client_options.root_source_file = b.path("zig/client/" ++ root ++ ".zig");
    const module = b.createModule(client_options);
    module.addImport("hash", b.createModule(hash_options));
    return module;
}
