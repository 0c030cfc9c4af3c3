# From the lines NAME@VERSION of all crates of a normal build to whether the bill of materials in $sbom is right.

$sbom[0] as $bill
| (split("\n") | map(select(. != ""))) as $tree
| ($bill.components | map("\(.name)@\(.version)")) as $listed
| ([$bill.metadata.component, $bill.components[]] | map(.["bom-ref"])) as $refs
| def must($what; $wrong): if $wrong == [] then empty else error("\($what): \($wrong | .[:10] | join(", "))") end;
  [
    must("not CycloneDX 1.5"; [[$bill.bomFormat, $bill.specVersion] | select(. != ["CycloneDX", "1.5"]) | tostring]),
    must("no crates"; [$tree | select(length < 100) | length | tostring]),
    must("not listed"; $tree - $listed),
    must("listed twice"; $refs | group_by(.) | map(select(length > 1)[0])),
    must("without a licence"; [$bill.components[] | select(.licenses == [] or (.licenses[0].expression // .licenses[0].license.name) == null) | .name]),
    must("without a checksum"; [$bill.components[] | select(.purl | startswith("pkg:cargo/")) | select(.hashes == []) | .name]),
    must("depends on nothing that is listed"; [$bill.dependencies[] | .dependsOn[]] | unique - $refs),
    must("without its dependencies"; $refs - [$bill.dependencies[].ref])
  ]
| true
