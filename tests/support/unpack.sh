#!/bin/sh
# unpack.sh SUITE FOLDER PACKAGE...: unpacks packages of a suite of Debian; installs nothing.
set -eu
suite=$1 folder=$2
shift 2
part=$folder.part
rm -rf "$part"
mkdir -p "$part"/lists/partial "$part"/none "$part"/root
: >"$part/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$part/sources.list"
cat >"$part/apt.conf" <<CONF
Dir::Etc::sourcelist "$part/sources.list"; Dir::Etc::sourceparts "$part/none";
Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "$part/none";
Dir::State::lists "$part/lists"; Dir::State::status "$part/status"; Dir::Cache "$part/cache";
Acquire::Languages "none"; Acquire::Retries "3";
APT::Sandbox::User "root"; APT::Update::Post-Invoke "";
CONF
cd "$part"
export APT_CONFIG="$part/apt.conf"
apt-get -qq update
apt-get -qq download "$@"
for deb in *.deb; do dpkg -x "$deb" root; done
rm -rf "$folder"
mv root "$folder"
cd ..
rm -rf "$part"
