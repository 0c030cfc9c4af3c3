# From `cargo metadata`, $target and $checksums to a bill of materials: CycloneDX 1.5, in JSON.

def purl: "pkg:cargo/\(.name)@\(.version | gsub("\\+"; "%2B"))";

# Crates' older form of two licences to choose from.
def licence: gsub("(?<a>[^ ])/(?<b>[^ ])"; "\(.a) OR \(.b)");

# What a crate builds from source in C: its own version says which, behind the plus sign.
def in_c: {
    "rdkafka-sys": { name: "librdkafka", supplier: "confluentinc", licence: "BSD-2-Clause" },
    "zstd-sys": { name: "zstd", supplier: "facebook", licence: "BSD-3-Clause" },
    "openssl-src": { name: "openssl", supplier: "openssl", licence: "Apache-2.0" },
    "tikv-jemalloc-sys": { name: "jemalloc", supplier: "jemalloc", licence: "BSD-2-Clause" }
};

# All that is reached from the ids of `from` by `next`, an object of lists.
def closure($next):
    { seen: (map({ key: ., value: true }) | from_entries), new: . }
    | until(.new == [];
        .seen as $seen
        | ([.new[] | $next[.][]] | unique | map(select($seen[.] | not))) as $new
        | { seen: ($seen + ($new | map({ key: ., value: true }) | from_entries)), new: $new })
    | .seen;

.resolve.root as $root
| ($checksums | split("\n") | map(select(. != "") | split(" ") | { key: .[0], value: .[1] }) | from_entries) as $sums
| (.packages | map({ key: .id, value: . }) | from_entries) as $packages
| ($packages | map_values(any(.targets[]; .kind | index("proc-macro")))) as $macros
| def edges($kinds): .resolve.nodes
    | map({ key: .id, value: [.deps[] | select(any(.dep_kinds[]; .kind as $kind | $kinds | index([$kind]) != null)) | .pkg] })
    | from_entries;
  edges([null]) as $normal
| edges([null, "build"]) as $building
# Of development dependencies only the root has any; a macro ends with the build.
| ([$root] | closure($normal | map_values(map(select($macros[.] | not))))) as $shipped
| ([$root] | closure($building)) as $built
| ($built | keys_unsorted | map(select(. != $root)) | sort_by($packages[.] | [.name, .version])) as $ids
| ($ids | map($packages[.] | select(in_c[.name] and (.version | contains("+")))
    | in_c[.name] as $library
    | { crate: .id, name: $library.name, supplier: $library.supplier, licence: $library.licence,
        version: (.version | split("+")[1] | ltrimstr("zstd.") | ltrimstr("v") | split("-")[0]) })) as $libraries
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: {
        component: ($packages[$root] | {
            type: "application", "bom-ref": purl, name, version, purl: purl, description,
            licenses: [{ expression: .license }]
        }),
        properties: [{ name: "postdate:target", value: $target }]
    },
    components: ([$ids[] | . as $id | $packages[$id] | {
        type: "library", "bom-ref": purl, name, version, purl: purl,
        scope: (if $shipped[$id] then "required" else "excluded" end),
        licenses: [if .license then { expression: (.license | licence) } else { license: { name: "see \(.license_file)" } } end],
        hashes: ($sums["\(.name)@\(.version)"] | if . then [{ alg: "SHA-256", content: . }] else [] end)
    }] + ($libraries | map({
        type: "library", "bom-ref": "c:\(.name)@\(.version)", name, version,
        purl: "pkg:github/\(.supplier)/\(.name)@\(.version)", scope: "required", licenses: [{ expression: .licence }]
    }))),
    dependencies: ([[$root], $ids] | add | map(. as $id | {
        ref: ($packages[$id] | purl),
        dependsOn: ([($building[$id][] | select($built[.]) | $packages[.] | purl),
            ($libraries[] | select(.crate == $id) | "c:\(.name)@\(.version)")] | unique)
    }) + ($libraries | map({ ref: "c:\(.name)@\(.version)", dependsOn: [] })))
}
